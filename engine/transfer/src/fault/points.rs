//! Where something can go wrong, and what.

macro_rules! words {
    ($(#[$doc:meta])* $kind:ident { $($(#[$word_doc:meta])* $name:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $kind { $($(#[$word_doc])* $name),* }

        impl $kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// As it is written in a text.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word),* }
            }

            pub(super) fn parse(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.word() == word)
            }
        }
    };
}

words! {
    /// Where something can go wrong.
    Point {
        /// A control frame about to be sent; name = kind.
        FrameSent = "frame-sent",
        /// A control frame that arrived; name = kind.
        FrameReceived = "frame-received",
        /// A transport takes a post.
        Post = "post",
        /// A transport is asked for news.
        Poll = "poll",
        /// A transport ends a ticket.
        Completion = "completion",
        /// A connection is torn down.
        TearDown = "tear-down",
        /// One page is copied; name = item.
        PageCopy = "page-copy",
        /// One page arrived; name = item.
        Landing = "landing",
        /// A unit counts as landed; name = item that is not waited for.
        Gate = "gate",
        /// The request leaves landing pages.
        Quarantine = "quarantine",
        /// Report P(k) of a rank; name = its number.
        Exchange = "exchange",
        /// Pages of an item are stored in host slots; name = item.
        HostSave = "host-save",
        /// Pages of an item are to be read out of host slots; name = item.
        HostLoad = "host-load",
        /// A connection of a client; name = `read` or `write`.
        Http = "http",
    }
}

words! {
    /// What goes wrong. The number of a rule belongs to the fault: milliseconds (or ticks of a simulation), a byte.
    Fault {
        /// Later by that many milliseconds; of frames, those behind it too.
        Delay = "delay",
        /// Not at all.
        Drop = "drop",
        /// Twice.
        Duplicate = "duplicate",
        /// Behind the next one.
        Reorder = "reorder",
        /// Cut behind that many bytes; 0: behind as many as the seed says.
        Truncate = "truncate",
        /// That byte changed; 0: one that the seed picks.
        Flip = "flip",
        /// An error instead.
        Fail = "fail",
        /// No end.
        NeverEnd = "never-end",
        /// An end before the bytes are there, by that many milliseconds.
        EndEarly = "end-early",
        /// An error, and the bytes that many milliseconds later all the same.
        ErrorThenWrite = "error-then-write",
        /// Bytes once more, that many milliseconds after a good end.
        LateWrite = "late-write",
        /// The peer's incarnation of before.
        Stale = "stale",
        /// A wrong byte.
        Corrupt = "corrupt",
        /// Not waited for.
        SkipWait = "skip-wait",
        /// Given back although a writer is possible.
        ReleaseEarly = "release-early",
        /// Never handed in.
        Withhold = "withhold",
        /// Another hash of the last decision.
        UnequalHash = "unequal-hash",
        /// Stops for that many milliseconds.
        Stall = "stall",
        /// Closed behind that many bytes.
        Close = "close",
    }
}

impl Point {
    /// What can go wrong here.
    pub fn faults(self) -> &'static [Fault] {
        use Fault::*;
        match self {
            Self::FrameSent | Self::FrameReceived => &[Delay, Drop, Duplicate, Reorder, Truncate, Flip],
            Self::Post => &[Fail, Stale, Delay],
            Self::Poll => &[Delay],
            Self::Completion => &[Fail, NeverEnd, EndEarly, ErrorThenWrite, LateWrite],
            Self::TearDown => &[Delay],
            Self::PageCopy | Self::Landing => &[Delay, Corrupt, LateWrite],
            Self::Gate => &[SkipWait],
            Self::Quarantine => &[ReleaseEarly],
            Self::Exchange => &[Delay, Withhold, UnequalHash],
            Self::HostSave | Self::HostLoad => &[Delay, Fail, Corrupt],
            Self::Http => &[Stall, Close],
        }
    }
}
