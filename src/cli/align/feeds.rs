//! Which tensor feeds which input of two models.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use half::{bf16, f16};

use crate::base::limits;
use crate::cli::{nearest, table};
use crate::compare::Dim;
use crate::onnx;
use crate::onnx::proto::tensor_shape_proto::dimension;
use crate::onnx::proto::{GraphProto, ValueInfoProto, type_proto};
use crate::study::Random;
use crate::tensor::{DType, Shape, TensorBuf, TensorDesc};

/// Dimensions that are made up are at least this.
const LEAST_SIZE: f64 = 2.;
/// And at most so much more.
const SIZES: f64 = 6.;
/// Integers that are made up are below this: rows of any table.
const IDS: f64 = 4.;

/// Tensors that an error names.
const SHOWN: usize = 10;
/// Pairs of an input and a tensor that are tried by dtype and shape.
const MOST_PAIRS: usize = 100_000_000;

/// A tensor that may feed an input.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// "" where it has none.
    pub(super) name: String,
    pub(super) tensor: TensorBuf,
}

/// An input that must be fed, as its model declares it.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) name: String,
    dtype: DType,
    /// None: of any shape.
    dims: Option<Vec<Dim>>,
}

/// A tensor for each of a model's inputs, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Feeds {
    pub(super) given: Vec<Source>,
    /// Inputs that were not matched by name, and how they were.
    pub(super) notes: Vec<String>,
}

impl Input {
    /// Inputs without an initializer of their name. Errors: one is no tensor of a dtype that torch has; two have one name.
    pub(super) fn all_of(graph: &GraphProto) -> Result<Vec<Self>, String> {
        let defaults: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
        let mut names = HashSet::new();
        if let Some(again) = graph.input.iter().find(|info| !names.insert(info.name())) {
            return Err(format!("two inputs are called {:?}", again.name()));
        }
        graph.input.iter().filter(|info| !defaults.contains(info.name())).map(Self::of).collect()
    }

    fn of(info: &ValueInfoProto) -> Result<Self, String> {
        let declared = info.r#type.as_ref();
        let tensor = match declared.and_then(|declared| declared.value.as_ref()) {
            Some(type_proto::Value::TensorType(tensor)) => tensor,
            _ => return Err(not_fed(info)),
        };
        let dtype = DType::from_onnx(tensor.elem_type()).map_err(|_| not_fed(info))?;
        let dim = |dim: &crate::onnx::proto::tensor_shape_proto::Dimension| match &dim.value {
            Some(dimension::Value::DimValue(size)) => Dim::Known(*size),
            Some(dimension::Value::DimParam(name)) => Dim::Symbolic(name.clone()),
            None => Dim::Symbolic(String::new()),
        };
        let rank = tensor.shape.as_ref().map_or(0, |shape| shape.dim.len());
        if rank > Shape::MAX_RANK {
            return Err(format!(
                "input {:?} has {rank} dimensions; a tensor has at most {}",
                info.name(),
                Shape::MAX_RANK
            ));
        }
        let dims = tensor.shape.as_ref().map(|shape| shape.dim.iter().map(dim).collect());
        Ok(Self { name: info.name().to_owned(), dtype, dims })
    }

    pub(super) fn fits(&self, tensor: &TensorBuf) -> bool {
        self.dtype == tensor.desc().dtype && self.has_shape(tensor)
    }

    /// The tensor in its dtype, where both are floats.
    fn cast(&self, tensor: &TensorBuf) -> Option<TensorBuf> {
        let desc = tensor.desc();
        if !(self.has_shape(tensor) && self.dtype.is_float() && desc.dtype.is_float()) {
            return None;
        }
        let values = tensor.view().flat_f64(0..desc.shape.n_elements())?;
        let bytes = values.into_iter().flat_map(|value| rounded(value, self.dtype)).collect();
        TensorBuf::new(TensorDesc { dtype: self.dtype, shape: desc.shape.clone() }, bytes).ok()
    }

    fn has_shape(&self, tensor: &TensorBuf) -> bool {
        let desc = tensor.desc();
        let same = |(dim, size): (&Dim, &i64)| match dim {
            Dim::Known(known) => known == size,
            Dim::Symbolic(_) => true,
        };
        let of_shape =
            |dims: &Vec<Dim>| dims.len() == desc.shape.rank() && dims.iter().zip(desc.shape.dims()).all(same);
        self.dims.as_ref().is_none_or(of_shape)
    }

    fn text(&self) -> String {
        let dims = self.dims.as_ref().map(|dims| {
            let text = |dim: &Dim| match dim {
                Dim::Known(size) => size.to_string(),
                Dim::Symbolic(name) if name.is_empty() => "?".to_owned(),
                Dim::Symbolic(name) => table::escape(name),
            };
            dims.iter().map(text).collect::<Vec<_>>().join(", ")
        });
        format!("{}[{}]", self.dtype, dims.unwrap_or_else(|| "…".to_owned()))
    }
}

/// Why a model with such an input is not run, and what to do.
fn not_fed(info: &ValueInfoProto) -> String {
    let declared = info.r#type.as_ref();
    let instead = match declared.and_then(|declared| declared.value.as_ref()) {
        Some(type_proto::Value::TensorType(_)) => "make it an initializer",
        Some(type_proto::Value::SequenceType(_)) => {
            "make it of inputs that are tensors (a node SequenceConstruct in its place)"
        }
        Some(type_proto::Value::OptionalType(_)) => {
            "make it of an input that is a tensor (a node Optional in its place)"
        }
        _ => "make it of inputs that are tensors",
    };
    format!(
        "input {:?} is {}: only tensors of numbers and bools are fed; {instead}, or align what follows it \
         (onnx.utils.extract_model cuts a model)",
        info.name(),
        onnx::type_text(declared)
    )
}

/// Tensors that may feed a model, and what is known of both.
pub(super) struct Offered<'a> {
    pub(super) sources: &'a [Source],
    /// What sources are by the provenance of their part, by their name.
    pub(super) called: &'a HashMap<String, String>,
    /// The same of the model's inputs.
    pub(super) inputs_called: &'a HashMap<String, String>,
    /// A tensor of an input's name, in words.
    pub(super) whose: &'a str,
}

/// Feeds of a model by name (their own, or what they are by the provenance), then by dtype and shape, in their order; then
/// `otherwise`. Errors: a tensor of an input's name does not fit it; an input has none.
pub(super) fn matched(
    inputs: &[Input],
    offered: &Offered<'_>,
    mut otherwise: impl FnMut(&Input) -> Result<Option<(Source, String)>, String>,
) -> Result<Feeds, String> {
    let sources = offered.sources;
    let by_name = by_name(inputs, offered)?;
    let taken: HashSet<usize> = by_name.values().copied().collect();
    let mut free: Vec<usize> = (0..sources.len()).filter(|at| !taken.contains(at)).collect();
    let unnamed: Vec<&Input> = inputs.iter().filter(|input| !by_name.contains_key(input.name.as_str())).collect();
    if unnamed.len().saturating_mul(free.len().max(inputs.len())) > MOST_PAIRS && !free.is_empty() {
        return Err(format!(
            "{} inputs have no tensor of their name, and {} tensors no input: too many to match them by dtype and \
             shape; give the tensors the names of the inputs",
            unnamed.len(),
            free.len()
        ));
    }
    // What was taken meanwhile might have been meant for another.
    let all_free = free.clone();
    let mut feeds = Feeds::default();
    for input in inputs {
        let (name, told) = (input.name.clone(), format!("input {:?}", input.name));
        let by_kind = || free.iter().position(|&source| input.fits(&sources[source].tensor));
        let tensor = match by_name.get(name.as_str()).copied() {
            Some(source) if !input.fits(&sources[source].tensor) => {
                let from = sources[source].tensor.desc().dtype;
                feeds
                    .notes
                    .push(format!("{told} is fed with the tensor of its name, cast from {from} to {}", input.dtype));
                input.cast(&sources[source].tensor).expect("looked at above")
            }
            Some(source) => sources[source].tensor.clone(),
            None => match by_kind() {
                Some(place) => {
                    let source = &sources[free.remove(place)];
                    let fitting = all_free.iter().filter(|&&source| input.fits(&sources[source].tensor)).count();
                    let rivals = unnamed.iter().filter(|other| other.fits(&source.tensor)).count();
                    let whose =
                        if source.name.is_empty() { "a tensor".to_owned() } else { format!("{:?}", source.name) };
                    let how = match (fitting, rivals) {
                        (1, 1) if sources.iter().filter(|source| input.fits(&source.tensor)).count() > 1 => {
                            "the only one of its dtype and shape that no name took".to_owned()
                        }
                        (1, 1) => "the only one of its dtype and shape".to_owned(),
                        _ => format!(
                            "ambiguous: {fitting} tensors and {rivals} inputs have its dtype and shape, taken in their order"
                        ),
                    };
                    feeds.notes.push(format!("{told} is fed with {whose}, {how}"));
                    source.tensor.clone()
                }
                None => match otherwise(input)? {
                    Some((source, how)) => {
                        feeds.notes.push(format!("{told} is fed with {how}"));
                        source.tensor
                    }
                    None => return Err(missing(input, &free, sources)),
                },
            },
        };
        feeds.given.push(Source { name, tensor });
    }
    if !free.is_empty() {
        let names: Vec<_> = free.iter().map(|&source| format!("{:?}", sources[source].name)).collect();
        feeds.notes.push(format!("no input takes {}", names.join(", ")));
    }
    Ok(feeds)
}

/// Places of the sources of inputs that have one of their name, or that both are one thing by the provenance. Errors: one does
/// not fit.
fn by_name<'i>(inputs: &'i [Input], offered: &Offered<'_>) -> Result<HashMap<&'i str, usize>, String> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (at, source) in offered.sources.iter().enumerate().filter(|(_, source)| !source.name.is_empty()) {
        places.entry(&source.name).or_insert(at);
    }
    for (at, source) in offered.sources.iter().enumerate() {
        if let Some(called) = offered.called.get(&source.name) {
            places.entry(called).or_insert(at);
        }
    }
    let mut found = HashMap::new();
    for input in inputs {
        let called = offered.inputs_called.get(&input.name).map(String::as_str);
        let at = places.get(input.name.as_str()).or_else(|| places.get(called?)).copied();
        let Some(at) = at else { continue };
        let tensor = &offered.sources[at].tensor;
        if !input.fits(tensor) && input.cast(tensor).is_none() {
            let (name, expected, whose) = (&input.name, input.text(), offered.whose);
            return Err(format!("input {name:?}: expected {expected}, {whose} is {}", tensor.desc()));
        }
        found.insert(input.name.as_str(), at);
    }
    Ok(found)
}

fn missing(input: &Input, free: &[usize], sources: &[Source]) -> String {
    let told = |at: usize| format!("{:?} {}", sources[at].name, sources[at].tensor.desc());
    let shown: Vec<_> = free.iter().map(|&at| told(at)).take(SHOWN).collect();
    let more = if free.len() > SHOWN { format!(", and {} more", free.len() - SHOWN) } else { String::new() };
    let left = if shown.is_empty() { "nothing".to_owned() } else { shown.join(", ") + &more };
    let fitting = |at: &usize| !free.contains(at) && input.fits(&sources[*at].tensor);
    let taken: Vec<_> = (0..sources.len()).filter(fitting).map(told).take(SHOWN).collect();
    let taken = match taken.as_slice() {
        [] => String::new(),
        taken => format!("; of its dtype and shape, but fed to other inputs, are {}", taken.join(", ")),
    };
    format!(
        "input {:?} {}: no tensor of the feeds has its name, or its dtype and shape; left are {left}{taken}; give each model \
         its own --feeds, or none",
        input.name,
        input.text()
    )
}

/// Feeds made up, the same for the same seed.
pub(super) struct Made {
    random: Random,
    /// Named dimensions: those that were asked for, that the other model knows, or that were drawn.
    sizes: BTreeMap<String, i64>,
    /// In the order in which they were needed.
    used: Vec<String>,
    met: BTreeSet<String>,
    drawn: BTreeSet<String>,
    /// Bytes of all that was made up.
    n_bytes: u64,
}

impl Made {
    /// For the inputs of both models: where one knows a dimension that the other names, it is that.
    pub(super) fn new(seed: u64, asked: &[(String, i64)], both: [&[Input]; 2]) -> Result<Self, String> {
        let names = both.into_iter().flatten().flat_map(|input| input.dims.iter().flatten());
        let names: Vec<&str> =
            names.filter_map(|dim| if let Dim::Symbolic(name) = dim { Some(name.as_str()) } else { None }).collect();
        if let Some((unknown, _)) = asked.iter().find(|(name, _)| !names.contains(&name.as_str())) {
            let hint = nearest::hint(unknown, names.iter().copied().filter(|name| !name.is_empty()));
            return Err(format!("--size {unknown}: no input of either model has a dimension of that name{hint}"));
        }
        let mut sizes: BTreeMap<String, i64> = asked.iter().cloned().collect();
        let [first, second] = both;
        let named: HashMap<&str, &Input> = second.iter().map(|other| (other.name.as_str(), other)).collect();
        for (at, input) in first.iter().enumerate() {
            let by_name = named.get(input.name.as_str()).copied();
            let Some(other) = by_name.or_else(|| second.get(at)).filter(|other| other.dtype == input.dtype) else {
                continue;
            };
            let pairs = input.dims.iter().flatten().zip(other.dims.iter().flatten());
            for pair in pairs.filter(|_| input.dims.as_ref().map(Vec::len) == other.dims.as_ref().map(Vec::len)) {
                if let (Dim::Symbolic(name), Dim::Known(size)) | (Dim::Known(size), Dim::Symbolic(name)) = pair
                    && !name.is_empty()
                {
                    sizes.entry(name.clone()).or_insert(*size);
                }
            }
        }
        Ok(Self {
            random: Random::new(seed),
            sizes,
            used: Vec::new(),
            met: BTreeSet::new(),
            drawn: BTreeSet::new(),
            n_bytes: 0,
        })
    }

    /// A tensor for an input. Errors: its rank is not told; it would not fit into memory.
    pub(super) fn tensor(&mut self, input: &Input) -> Result<Source, String> {
        let told = |why: String| format!("input {:?} {}: {why}", input.name, input.text());
        let dims = input.dims.as_ref().ok_or_else(|| told("its shape is not told; give --feeds".to_owned()))?;
        let dims: Vec<i64> = dims.iter().map(|dim| self.size(dim)).collect();
        let desc = TensorDesc::new(input.dtype, dims).map_err(|error| told(error.to_string()))?;
        self.n_bytes = self.n_bytes.saturating_add(desc.len_bytes() as u64);
        if self.n_bytes > limits::feeds_bytes() {
            let text = format!("{desc} does not fit into memory beside those before; give --size or --feeds");
            return Err(told(text));
        }
        let n = desc.shape.n_elements();
        let bytes = match is_mask(input) {
            // Of the masks that there are the one that hides nothing.
            true => [vec![1], vec![0; desc.dtype.size_bytes() - 1]].concat().repeat(n),
            false => (0..n).flat_map(|_| self.element(input.dtype)).collect(),
        };
        let tensor = TensorBuf::new(desc, bytes).map_err(|error| told(error.to_string()))?;
        Ok(Source { name: input.name.clone(), tensor })
    }

    /// Named dimensions and what stands for them: `batch=3 (drawn), tokens=5`.
    pub(super) fn sizes(&self) -> Vec<String> {
        let drawn = |name: &String| if self.drawn.contains(name) { " (drawn)" } else { "" };
        self.used.iter().map(|name| format!("{name}={}{}", self.sizes[name], drawn(name))).collect()
    }

    fn size(&mut self, dim: &Dim) -> i64 {
        let name = match dim {
            Dim::Known(size) => return *size,
            Dim::Symbolic(name) => name,
        };
        let drawn = (LEAST_SIZE + self.random.uniform() * SIZES) as i64;
        if name.is_empty() {
            return drawn;
        }
        if self.met.insert(name.clone()) {
            self.used.push(name.clone());
        }
        if !self.sizes.contains_key(name) {
            self.drawn.insert(name.clone());
            self.sizes.insert(name.clone(), drawn);
        }
        self.sizes[name]
    }

    fn element(&mut self, dtype: DType) -> Vec<u8> {
        use DType::*;
        let id = |random: &mut Random| (random.uniform() * IDS) as u8;
        let random = &mut self.random;
        match dtype {
            F16 | BF16 | F32 | F64 => rounded(random.normal(), dtype),
            C64 => [random.normal() as f32, random.normal() as f32].map(f32::to_le_bytes).concat(),
            C128 => [random.normal(), random.normal()].map(f64::to_le_bytes).concat(),
            Bool => vec![u8::from(random.uniform() < 0.5)],
            // Bits of small numbers, whatever the exponent's width.
            F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ => vec![0x30 + id(random)],
            U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64 => {
                let mut bytes = vec![0; dtype.size_bytes()];
                bytes[0] = id(random);
                bytes
            }
        }
    }
}

/// Whether its integers say what is hidden: 1 or 0, of which others are none.
fn is_mask(input: &Input) -> bool {
    use DType::{Bool, I8, I16, I32, I64, U8, U16, U32, U64};
    let is_integer = matches!(input.dtype, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64 | Bool);
    is_integer && input.name.to_lowercase().contains("mask")
}

/// A float of these types, in its bytes.
fn rounded(value: f64, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        _ => (value as f32).to_le_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::value_info;

    fn input(name: &str, dtype: DType, dims: &[Dim]) -> Input {
        Input { name: name.to_owned(), dtype, dims: Some(dims.to_vec()) }
    }

    fn source(name: &str, dims: &[i64]) -> Source {
        Source { name: name.to_owned(), tensor: TensorBuf::zeros(TensorDesc::new(DType::F32, dims).unwrap()) }
    }

    fn matched_to(inputs: &[Input], sources: &[Source]) -> Result<Feeds, String> {
        let known = HashMap::new();
        let offered = Offered { sources, called: &known, inputs_called: &known, whose: "the tensor of its name" };
        matched(inputs, &offered, none)
    }

    fn none(_: &Input) -> Result<Option<(Source, String)>, String> {
        Ok(None)
    }

    #[test]
    fn names_go_first_then_dtype_and_shape_in_order_and_what_is_ambiguous_is_told() {
        let two = [Dim::Known(2)];
        let inputs = [
            input("a", DType::F32, &two),
            input("b", DType::F32, &two),
            input("c", DType::F32, &[Dim::Symbolic("n".to_owned())]),
            input("d", DType::F32, &[Dim::Known(1), Dim::Known(1)]),
        ];
        let sources = [source("p", &[2]), source("q", &[2]), source("c", &[2]), source("", &[1, 1]), source("r", &[9])];
        let feeds = matched_to(&inputs, &sources).unwrap();
        assert_eq!(feeds.given.iter().map(|given| given.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert_eq!(
            feeds.notes,
            [
                "input \"a\" is fed with \"p\", ambiguous: 2 tensors and 2 inputs have its dtype and shape, taken in their \
                 order",
                "input \"b\" is fed with \"q\", ambiguous: 2 tensors and 2 inputs have its dtype and shape, taken in their \
                 order",
                "input \"d\" is fed with a tensor, the only one of its dtype and shape",
                "no input takes \"r\"",
            ]
        );
        let error = matched_to(&inputs, &sources[1..]).unwrap_err();
        assert!(error.contains("input \"b\" float32[2]") && error.contains("left are"), "{error}");
        let half = input("p", DType::F16, &two);
        let feeds = matched_to(&[half], &sources[..1]).unwrap();
        assert_eq!(feeds.given[0].tensor.desc().to_string(), "float16[2]");
        assert!(feeds.notes[0].ends_with("cast from float32 to float16"), "{:?}", feeds.notes);
        let named = [input("q", DType::F32, &two), input("b", DType::F32, &two)];
        let feeds = matched_to(&named, &[source("a", &[2]), source("b", &[2])]).unwrap();
        assert_eq!(
            feeds.notes,
            ["input \"q\" is fed with \"a\", the only one of its dtype and shape that no name took"]
        );
        let error = matched_to(&inputs[..1], &[source("a", &[3])]).unwrap_err();
        assert!(error.contains("expected float32[2], the tensor of its name is float32[3]"), "{error}");
    }

    #[test]
    fn inputs_and_tensors_are_one_by_their_provenance() {
        let two = [Dim::Known(2)];
        let map = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
            pairs.iter().map(|&(name, called)| (name.to_owned(), called.to_owned())).collect()
        };
        let of_part = map(&[("primals_1", "model.w"), ("primals_2", "model.v")]);
        let values = |first: f32| TensorBuf::from_f32([2], &[first, 1.]).unwrap();
        let sources = [("primals_1", 5.), ("primals_2", 7.)]
            .map(|(name, first)| Source { name: name.to_owned(), tensor: values(first) });
        let inputs = [input("model.v", DType::F32, &two), input("model.w", DType::F32, &two)];
        let none_called = HashMap::new();
        let offered = Offered { sources: &sources, called: &of_part, inputs_called: &none_called, whose: "it" };
        let feeds = matched(&inputs, &offered, none).unwrap();
        assert_eq!(feeds.given.iter().map(|given| given.tensor.clone()).collect::<Vec<_>>(), [values(7.), values(5.)]);
        assert!(feeds.notes.is_empty(), "{:?}", feeds.notes);
        // And the other way.
        let named = [("model.w", 5.), ("model.v", 7.)]
            .map(|(name, first)| Source { name: name.to_owned(), tensor: values(first) });
        let inputs = [input("primals_2", DType::F32, &two)];
        let offered = Offered { sources: &named, called: &none_called, inputs_called: &of_part, whose: "it" };
        assert_eq!(matched(&inputs, &offered, none).unwrap().given[0].tensor, values(7.));
        // One tensor is not fed twice, and that is said.
        let twice = [input("model.w", DType::F32, &two), input("labels", DType::F32, &two)];
        let offered = Offered { sources: &named[..1], called: &none_called, inputs_called: &none_called, whose: "it" };
        let error = matched(&twice, &offered, none).unwrap_err();
        assert!(
            error.contains("left are nothing; of its dtype and shape, but fed to other inputs, are \"model.w\""),
            "{error}"
        );
    }

    #[test]
    fn a_mask_that_is_made_up_hides_nothing() {
        let mask = input("attention_mask", DType::I64, &[Dim::Known(1), Dim::Known(3)]);
        let tensor = Made::new(0, &[], [&[], &[]]).unwrap().tensor(&mask).unwrap().tensor;
        assert_eq!(tensor.view().flat_f64(0..3), Some(vec![1.; 3]));
    }

    #[test]
    fn what_is_made_up_is_the_same_for_the_same_seed_and_fits_both_models() {
        let named = |name: &str| Dim::Symbolic(name.to_owned());
        let first = [input("x", DType::F32, &[named("batch"), named("n")]), input("ids", DType::I64, &[named("n")])];
        let second = [input("x", DType::F32, &[Dim::Known(7), named("n")])];
        let make = |seed| {
            let mut made = Made::new(seed, &[("n".to_owned(), 5)], [&first, &second]).unwrap();
            let tensors: Vec<_> = first.iter().map(|input| made.tensor(input).unwrap().tensor).collect();
            assert_eq!(made.sizes(), ["batch=7", "n=5"]);
            tensors
        };
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
        assert_eq!(make(1)[0].desc().shape.dims(), [7, 5]);
        assert!(make(1)[1].view().flat_f64(0..5).unwrap().iter().all(|&id| (0. ..IDS).contains(&id)));
        let unknown = Made::new(0, &[("bacth".to_owned(), 5)], [&first, &second]).err().unwrap();
        assert!(unknown.contains("did you mean \"batch\"?"), "{unknown}");
        let large = input("x", DType::F32, &[Dim::Known(1 << 50)]);
        assert!(Made::new(0, &[], [&[], &[]]).unwrap().tensor(&large).unwrap_err().contains("memory"));
    }

    #[test]
    fn an_input_with_a_default_need_not_be_fed() {
        let info = |name: &str| value_info(name, &TensorDesc::new(DType::F32, [2]).unwrap());
        let default = crate::onnx::proto::TensorProto { name: Some("w".to_owned()), ..Default::default() };
        let graph =
            GraphProto { input: vec![info("x"), info("w")], initializer: vec![default], ..GraphProto::default() };
        let inputs = Input::all_of(&graph).unwrap();
        assert_eq!(inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), ["x"]);
        let sequence = ValueInfoProto { name: Some("s".to_owned()), ..ValueInfoProto::default() };
        let graph = GraphProto { input: vec![sequence], ..GraphProto::default() };
        assert!(Input::all_of(&graph).unwrap_err().contains("are fed"));
    }

    #[test]
    fn what_is_not_fed_is_said_with_what_to_do_instead() {
        use crate::onnx::proto::TypeProto;
        let told = |value| {
            let r#type = Some(TypeProto { value: Some(value), denotation: None });
            Input::of(&ValueInfoProto { name: Some("s".to_owned()), r#type, ..ValueInfoProto::default() }).unwrap_err()
        };
        let text = type_proto::Tensor { elem_type: Some(8), shape: None };
        let expected = "only tensors of numbers and bools are fed; make it an initializer, or align what follows it";
        assert!(told(type_proto::Value::TensorType(text)).contains(expected));
        let of_sequence = told(type_proto::Value::SequenceType(Box::default()));
        assert!(of_sequence.contains("a node SequenceConstruct in its place"), "{of_sequence}");
        assert!(told(type_proto::Value::OptionalType(Box::default())).contains("a node Optional in its place"));
    }
}
