"""Talk to EC2: the one implementation of the protocols of a cloud, over boto3, the same for AWS and the local EC2.

`ec2.py` has an object for each subject (instances, fleets, network, roles, buckets …); a flow takes the one it needs.

Every botocore exception is translated here. Never decides what to launch; that is `planning.plan`.
"""
