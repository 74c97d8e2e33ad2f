"""Stands in for a parameter server or its worker: serves until it is stopped, and never ends."""

import os
import threading

print(f"{os.environ['PRIMUS_ROLE_CATEGORY']} {os.environ['EXECUTOR_ID']} serves", flush=True)
threading.Event().wait()
