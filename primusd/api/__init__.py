"""The HTTP application: what people and programs talk to. One application, two listeners."""
