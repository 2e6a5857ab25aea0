//! Running plans: sessions, tickets, the inbox.
