"""The ledger of a stream, a pure machine: every position done, leased, waiting or dead."""
