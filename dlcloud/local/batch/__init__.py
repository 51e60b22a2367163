"""AWS Batch of the local EC2: moto's queues and jobs, whose containers are programs of local instances."""
