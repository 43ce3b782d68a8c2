"""Would it help? A request trace replayed through the two tiers, without a server or a GPU."""
