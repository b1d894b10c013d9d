"""What stands behind ``roll-lightning``: reading arguments and config files, checking them, and running Lightning.

``cli.py`` imports nothing heavy, and neither do ``arguments``, ``files``, ``tree`` and ``suggest``: help, versions and
faults in files answer at once. The other files import torch and Lightning.
"""
