"""Talk to EC2 over boto3, the same way for AWS and for the local EC2.

`ec2.py` names the object of each subject; a flow takes the one that it needs. The subjects: `compute`,
`network`, `offers`, `account`, `storage`; all stand on `api`, which translates botocore's errors. What to
launch is decided by `planning.plan`.
"""
