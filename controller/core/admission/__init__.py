"""Admission: which request goes where, and what waits.

scheduler        (in `core`) the controller's machine; `waiting_requests` are those it holds
placement        late binding: which of those goes where, which instances are reserved for whom
room_orders      for which blocked requests a round makes room, and where
api_keys         what keys use, and which of their requests are refused
asking           the frontend's machine: it asks where its requests go, or decides alone
waiting_reasons  what is held and why, for people
records          what of all this is put on record, and how rarely
"""
