"""A trainer that is a server: rows by HTTP to programs that no job started (docs/http-feed.md)."""
