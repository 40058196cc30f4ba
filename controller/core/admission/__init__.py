"""Admission: which instance each request goes to, and which requests wait.

scheduler         (in `core`) the controller's machine
waiting_requests  the requests that wait at the controller
instance_pool     the instances, what was sent to each, and the choice of one of them
policies          how an instance is scored and picked
placement         late binding: where a waiting request goes, which instances are reserved for it,
                  and, for people, why it waits
api_keys          what keys use, and which of their requests are refused
asking            the frontend's machine: it asks where its requests go, or decides alone
records           which of these decisions are put on record, and how rarely
"""
