"""A device behind adb: connection, shell protocol, files, keepers, apps."""
