"""What can be had: capacity pools, quotas, reservations and spot prices; must never start anything."""
