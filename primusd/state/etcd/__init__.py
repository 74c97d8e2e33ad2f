"""The etcd store, for more than one head: its client, its journal, its election."""
