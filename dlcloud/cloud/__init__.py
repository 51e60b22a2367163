"""Talk to EC2: the one implementation of a cloud's protocols, over boto3, the same for AWS and the local EC2.

`ec2.py` has an object for each subject (instances, fleets, network, roles, buckets …); a flow takes the one
that it needs. Every botocore exception is translated here. Never decides what to launch; that is
`planning.plan`.
"""
