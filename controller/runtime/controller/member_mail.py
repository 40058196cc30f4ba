"""Messages from the controller to its members."""

from collections.abc import Iterable

from controller.ports.mailbox import Mailbox
from controller.runtime.controller.roster import Member, Roster
from controller.runtime.messages.codec import encode
from controller.runtime.messages.message import Message


class MemberMail:
    """Sends to members that are alive; a message to another one is dropped."""

    def __init__(self, mailbox: Mailbox, roster: Roster) -> None:
        self._mailbox = mailbox
        self._roster = roster

    def send(self, member: Member, message: Message, *, droppable: bool = False) -> None:
        if member.alive:
            self._mailbox.send(member.address, encode(message), droppable=droppable)

    def send_to(self, member_id: str, message: Message, *, droppable: bool = False) -> None:
        """Does nothing if there is no such member any more."""
        member = self._roster.members.get(member_id)
        if member is not None:
            self.send(member, message, droppable=droppable)

    def send_to_all(self, members: Iterable[Member], message: Message) -> None:
        encoded = encode(message)
        for member in members:
            if member.alive:
                self._mailbox.send(member.address, encoded)

    def send_to_frontends(self, message: Message) -> None:
        self.send_to_all(self._roster.frontends(), message)
