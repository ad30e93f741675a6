"""The server: one port, HTTP through hypercorn and quart-trio, WebSockets through trio-websocket."""
