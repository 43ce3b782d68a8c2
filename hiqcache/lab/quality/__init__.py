"""What a lossy L2 restore does to a model's answers: on a real server, and without one."""
