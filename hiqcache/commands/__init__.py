"""One module per subcommand: arguments in, a call into a room below, figures out."""
