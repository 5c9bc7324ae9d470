//! What a dump may ask a runtime for. It may come from anywhere: providers and options that load a library, take an address
//! in memory or name a file are not taken from it.

use std::collections::BTreeMap;

use crate::protocol::message::{CPU_PROVIDER, CUDA_PROVIDER, Provider};
use crate::runtime::ort::{ALLOWED_OPTIMIZERS, THREADS};

/// Options of the CUDA provider that are numbers and names. Not among them: streams and allocators, which are addresses.
const CUDA_OPTIONS: &[&str] = &[
    "arena_extend_strategy",
    "cudnn_conv1d_pad_to_nc1d",
    "cudnn_conv_algo_search",
    "cudnn_conv_use_max_workspace",
    "device_id",
    "do_copy_in_default_stream",
    "enable_cuda_graph",
    "enable_skip_layer_norm_strict_mode",
    "fuse_conv_bias",
    "gpu_mem_limit",
    "prefer_nhwc",
    "sdpa_kernel",
    "tunable_op_enable",
    "tunable_op_max_tuning_duration_ms",
    "tunable_op_tuning_enable",
    "use_ep_level_unified_stream",
    "use_tf32",
];

/// Session config entries that are numbers, switches and names of optimizers.
const CONFIG: &[&str] = &[
    ALLOWED_OPTIMIZERS,
    THREADS,
    "mlas.disable_kleidiai",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
    "optimization.constant_folding_max_output_size_in_bytes",
    "optimization.disable_specified_optimizers",
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "session.allow_released_opsets_only",
    "session.disable_aot_function_inlining",
    "session.disable_cpu_ep_fallback",
    "session.disable_double_qdq_remover",
    "session.disable_prepacking",
    "session.disable_qdq_constant_folding",
    "session.disable_quant_qdq",
    "session.dynamic_block_base",
    "session.enable_quant_qdq_cleanup",
    "session.force_spinning_stop",
    "session.graph_optimizations_loop_level",
    "session.inter_op.allow_spinning",
    "session.intra_op.allow_spinning",
    "session.intra_op_thread_affinities",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdqisint8allowed",
    "session.set_denormal_as_zero",
    "session.strict_shape_type_inference",
    "session.use_device_allocator_for_initializers",
    "session.use_env_allocators",
    "session.x64quantprecision",
];

/// Providers as a dump names them, when they may be asked for. Else why not, without the file.
pub(super) fn checked_providers(providers: Vec<Provider>) -> Result<Vec<Provider>, String> {
    for (name, options) in &providers {
        let taken: &[&str] = match name.as_str() {
            CPU_PROVIDER => &[],
            CUDA_PROVIDER => CUDA_OPTIONS,
            _ => {
                return Err(format!(
                    "it ran with {name}, whose options can name code; run it with --provider {name}, without those \
                     options, or with --provider {CPU_PROVIDER}"
                ));
            }
        };
        if let Some(option) = options.keys().find(|option| !taken.contains(&option.as_str())) {
            return Err(format!(
                "it ran with {name} and its option {option:?}, which is not taken from a dump: it may name code, memory \
                 or a file; run it without options, with --provider {name}"
            ));
        }
    }
    Ok(providers)
}

/// The session config entries of a dump that are taken, and the names of the others.
pub(super) fn divided_config(asked: BTreeMap<String, String>) -> (BTreeMap<String, String>, Vec<String>) {
    let (taken, left): (BTreeMap<_, _>, BTreeMap<_, _>) =
        asked.into_iter().partition(|(key, _)| CONFIG.contains(&key.as_str()));
    (taken, left.into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(name: &str, options: &[(&str, &str)]) -> Provider {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        (name.to_owned(), options.collect())
    }

    #[test]
    fn only_providers_and_options_that_name_no_code_are_taken() {
        let good = [provider(CUDA_PROVIDER, &[("device_id", "0"), ("use_tf32", "0")]), provider(CPU_PROVIDER, &[])];
        assert_eq!(checked_providers(good.to_vec()), Ok(good.to_vec()));
        for (bad, told) in [
            (provider("QNNExecutionProvider", &[("backend_path", "/tmp/evil.so")]), "--provider QNNExecutionProvider"),
            (provider("TensorrtExecutionProvider", &[]), "--provider CPUExecutionProvider"),
            (provider(CUDA_PROVIDER, &[("gpu_external_alloc", "4198400")]), "\"gpu_external_alloc\""),
            (provider(CUDA_PROVIDER, &[("user_compute_stream", "1")]), "\"user_compute_stream\""),
            (provider(CPU_PROVIDER, &[("x", "1")]), "\"x\""),
        ] {
            let why = checked_providers(vec![bad]).unwrap_err();
            assert!(why.contains(told), "{why}");
        }
    }

    #[test]
    fn config_entries_that_may_name_a_file_are_left_out() {
        let asked = [
            "session.set_denormal_as_zero",
            "ep.context_file_path",
            "session.collect_node_memory_stats_to_file",
            "rust_ort.profile",
            THREADS,
        ];
        let (taken, left) = divided_config(asked.iter().map(|key| ((*key).to_owned(), "1".to_owned())).collect());
        assert_eq!(taken.into_keys().collect::<Vec<_>>(), [THREADS, "session.set_denormal_as_zero"]);
        assert_eq!(left, ["ep.context_file_path", "rust_ort.profile", "session.collect_node_memory_stats_to_file"]);
    }
}
