"""What people and programs are shown: JSON documents made from the durable state. Pure."""
