"""What requests will do, told from earlier ones. Nothing goes by it unless a policy asks."""
