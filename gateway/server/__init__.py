"""Sockets: frames in, responses out in request order, within limits."""
