"""Where a command is decided: in this process by the machine, or elsewhere by the service."""
