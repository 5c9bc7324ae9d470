//! ONNX models: read, write, order, look into, cut.
//!
//! A model may come from anywhere: nothing here panics on a hostile one, and nothing allocates by a number that the
//! model merely claims. What recurses (walks over bodies, types, encoding, dropping) recurses as deep as messages nest:
//! decoding refuses more than 100 levels, and functions put in place may not add more (see [`inline_functions`]).

mod attention;
mod branch;
mod canonical;
mod constants;
mod cut;
mod error;
mod footprint;
mod graph;
mod inline;
mod load;
mod outputs;
mod precision;
mod print;
pub mod proto;
pub mod region;
mod rewrite;
mod save;
mod select;
mod tensor;
mod terms;
mod walk;

pub use attention::{Attention, DOMAIN, drop_uncalled};
pub use branch::{has_bodies, take_branch};
pub use canonical::Canonical;
pub use constants::without_inputs;
pub use cut::{Feeds, Isolator, Piece, cut, read_by};
pub use error::OnnxError;
pub use footprint::footprint;
pub use graph::{count_nodes, expose_intermediates, order, producers, sort, uses, value_info};
pub use inline::{inline_around_attention, inline_functions};
pub use load::{decode, decode_whole, external_locations, load, load_alone_from, load_from, read, read_external};
pub use outputs::{has_transposed_outputs, keep_transposed_outputs};
pub use precision::{
    Attend, MISSING_KERNELS, MissingKernels, SWITCHES, Switched, Unrounded, Widened, double, dtype_of, for_each_typed,
    half_of, mentions, refused_operator, single, switched, widen, widen_but,
};
pub use print::{TextOptions, model_json, model_text, model_text_with, preview, tensor_line, type_text};
pub use region::{Extent, HIGHEST_RANK, Op, Program, REGION, Step, TYPED_REGION, TypedProgram};
pub use rewrite::{
    AVERAGED, BELOW, ChannelConvolution, HALF_PRODUCT, KEEPDIMS, LEFT_AXIS, RowReduction, TURNED, Target, WIDE_SUM,
    fit_kernels, is_ours, passes, passes_for, ran, reduce_rows, rewrite,
};
pub use save::{encoded, save};
pub use select::{Described, Descriptions, descriptions, fitting_values, matches, node_owners, select_nodes};
pub use tensor::{NamedTensor, decode_tensor, load_tensor, tensor_file_len, tensor_header, tensor_proto};
pub use terms::{ADDING, adds_up, give_terms};
