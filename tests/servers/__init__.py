"""Real servers for the tests, each in a process of its own.

`launch.serve` runs environments on openreward's own server, `platform.serve_platform` a stand-in for the hosted
platform in front of such servers, and `raw.serve_raw` a server that says what the SDK's server cannot.
"""
