"""The course in a real browser: a system Chromium, driven by Playwright."""
