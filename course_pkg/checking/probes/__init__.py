"""The same call once more: later, on another device, in another precision."""
