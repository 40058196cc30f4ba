"""The cluster in virtual time: the core's decisions and the model's engines, without a clock."""
