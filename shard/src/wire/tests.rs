//! What the wire makes of good, odd and hostile messages.
