"""What frameworks need of rl-eventlog: each module knows its own framework, and none of another."""
