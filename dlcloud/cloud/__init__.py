"""Talk to EC2: the one implementation of the Cloud protocol, over boto3, the same for AWS and the local EC2.

Every botocore exception is translated here. Never decides what to launch; that is `core.plan`.
"""
