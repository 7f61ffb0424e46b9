"""The model gateway: it stands between an agent in a box and its provider.

The box gets the gateway's address and a dummy key; the real key is put on here. What goes over the
wire is measured, can be refused by a budget, recorded, and answered from a recording.
"""
