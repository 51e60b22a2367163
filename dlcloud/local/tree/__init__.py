"""The folder of an instance, whose programs change it at any time.

Paths below the folder come in; nothing that a name in it leads to outside is opened, made, copied, given away
or removed, and nothing waits. All of `dlcloud.local` goes through here, which
tests/unit/local/test_hostile_trees.py holds; it must never know what an instance is.
"""
