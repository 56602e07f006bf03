"""Routes: each translates HTTP to one verb of the ledger, the registry or the gateway, and back."""
