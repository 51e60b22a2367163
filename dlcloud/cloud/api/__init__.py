"""Calls of AWS: sessions and credentials, boto3 clients, partitions, and botocore's errors as dlcloud's.

In: a region and a login. Out: clients that retry, and answers kept between commands. The other packages of
`cloud` stand on it; it knows no instance and no bucket.
"""
