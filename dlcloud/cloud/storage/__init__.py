"""What AWS keeps for a launcher: objects in S3, a shared ledger in a bucket, parameters and secrets.

In: URLs and names. Out: text and documents. Instances read and write buckets
themselves, by `templates/storage.py`.
"""
