"""What gives work out to workers and puts together what comes back, one for each access pattern."""
