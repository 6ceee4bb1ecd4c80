//! What is asked of an engine, and what it answers.

/// How rows after the prompt are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Every kernel is launched.
    #[default]
    Eager,
    /// A captured graph is replayed. Graphs are of the base model: with an adapter every kernel is
    /// launched.
    Graph,
}

/// An image of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The position of the first token that it takes the place of.
    pub at: u32,
    /// Channels, rows, columns: those that the model's tower takes.
    pub shape: [u32; 3],
    /// A byte each, in that order.
    pub pixels: Vec<u8>,
}

/// A request with fixed tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerateRequest {
    /// Its name in the launch trace.
    pub name: String,
    /// Tokens that are computed at once; at least one.
    pub prompt: Vec<u32>,
    /// Tokens that follow, one step each, whatever the model would have chosen.
    pub forced: Vec<u32>,
    /// How rows after the prompt are computed.
    pub mode: Mode,
    /// Whether blocks of the prefix cache are reused, and left behind.
    pub use_prefix_cache: bool,
    /// Images of the prompt, in order.
    pub images: Vec<Image>,
    /// Whether prepared images and the encoder's rows are reused, and left behind.
    pub use_encoder_cache: bool,
    /// The name of the adapter that it is served with; nothing for the base model.
    pub adapter: Option<String>,
    /// The replica that serves it, by its dp coordinate.
    pub replica: u32,
    /// Tokens that the model then chooses: the largest logit, of equals the lowest token. Where
    /// something drafts, they are those that the model verified.
    pub greedy_tokens: usize,
}

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Logits after the prompt and after each forced token, by the position of that token.
    pub rows: Vec<(u32, Vec<f32>)>,
    /// Tokens that the model chose.
    pub greedy: Vec<u32>,
    /// What drafts for the model says of the token after the prompt and after each forced token, by
    /// the position of that token; none where nothing drafts.
    pub draft_rows: Vec<(u32, Vec<f32>)>,
}
