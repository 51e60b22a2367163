"""S3 on the endpoint of the local EC2; must never need more of a caller than its signature."""
