"""The EC2 actions, and the instances that they launch; must never ask who calls."""
