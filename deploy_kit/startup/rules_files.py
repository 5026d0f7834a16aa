"""Rules: the hub and paths, weights, drafter, libraries. The first that fits wins."""

# ruff: noqa: E501  (patterns and their explanations read better unbroken)
from __future__ import annotations

from deploy_kit.startup.rule import Rule, rule
from deploy_kit.startup.rule_choice import (
    ARGUMENT_FRAMES,
    draft_or,
    hub_or_path,
    inherited_or_mismatch,
    is_draft,
    missing_path,
    refused,
)

RULES: tuple[Rule, ...] = (
    # The hub and paths.
    rule(
        "numa-refused",
        r"numactl could not apply|set_mempolicy.{0,80}(?:not permitted|invalid|blocked)|No CPU cores? .{0,60}NUMA"
        r"|NUMA bind\w* .{0,60}(?:fail|refus|not possible)",
        "NUMA binding was refused: {first}",
    ),
    rule(
        "weights-incomplete",
        r"config file at '?(?P<path>[^']+?)'? is not a valid JSON|is not a valid JSON file",
        "a file of the model is damaged: {first}",
    ),
    rule(
        lambda place, match: "drafter-mismatch" if is_draft(place, match) else "weights-incomplete",
        r"JSONDecodeError|UnicodeDecodeError",
        "a file of the model is no JSON (cut short, or a Git-LFS pointer): {first}",
        where=r"weight_utils|model_loader|hf_transformers|configuration_utils|get_config\b|model_config",
    ),
    rule(
        "trust-remote-code",
        r"trust[_-]remote[_-]code|contains custom code|requires you to execute the \w+ file",
        "the model's folder has its own code and may not run it without trust_remote_code",
    ),
    rule(
        "hub-denied",
        r"GatedRepo|gated repo|Access to model (?P<repo>\S+) is restricted|(?:401|403) (?:Client Error|Unauthorized|Forbidden)"
        r"|Invalid (?:username or password|user token|credentials)|is restricted and you are not"
        r"|not in the authorized list|awaiting a review|RepositoryNotFoundError|Repository Not Found"
        r"|Please log in|token .{0,40}(?:invalid|expired)",
        "the hub refuses this model: no token, a token without access, or the name is wrong ({first})",
    ),
    rule(
        hub_or_path,
        r"it looks like (?P<path>\S+) is not the path to a directory|(?P<path2>\S+) is not a local folder and is not a valid"
        r"|LocalEntryNotFound|OfflineModeIsEnabled|offline mode is enabled|couldn'?t connect to '?https?://\S*hugging"
        r"|(?:resolve|connect|reach)\S* .{0,60}huggingface\.co|huggingface\.co.{0,200}(?:Max retries|timed out|resolve)"
        r"|Max retries exceeded.{0,200}hugging|outgoing traffic has been disabled|cannot find the requested files in the"
        r"|Temporary failure in name resolution|Name or service not known|Network is unreachable",
        "the hub is unreachable and {path} is neither a local directory nor cached",
    ),
    rule(
        missing_path,
        r"Repo id must (?:be in the form|use alphanumeric).{0,80}?'(?P<path>[^']+)'|Incorrect path_or_model_id: '(?P<path2>[^']+)'"
        r"|(?P<path3>\S+) does not appear to have a file named config\.json|Unrecognized model in (?P<path4>\S+?)\.? Should have"
        r"|Cannot find any model weights with `(?P<path5>[^`]+)`|No model weights found in: `(?P<path6>[^`]+)`"
        r"|Can't load (?:the )?(?:config\w*|model|tokenizer) (?:of|for) '(?P<path7>[^']+)'"
        r"|Model path '?(?P<path8>[^' ]+)'? does not exist",
        "nothing usable at {path}: the path is not mounted, or the folder has no config.json or no weights",
    ),
    rule(
        "model-type-unknown",
        r"model type `?'?(?P<model_type>[\w.-]+)`?'? but Transformers does not recognize"
        r"|Unrecognized configuration class|Model architectures? (?P<architectures>\[[^\]]*\]|\S+) (?:is|are) not supported"
        r"|Unsupported architectures?|has no SGLang implementation|no SGLang implementation",
        "{who} model type {model_type} is unknown to this image (its transformers or SGLang is too old for it, or"
        " has no class for it)",
    ),
    # Weights.
    rule(
        "quantization",
        r"does not match the quantization|Unknown quantization method|quantization method .{0,60}not supported"
        r"|Cannot find the config file for|quant_config|quantization_config|compressed.tensors|inherit.{0,40}quantiz"
        r"|quantiz.{0,40}inherit|weight quantization block|qweight|weight_packed|weight_scale"
        r"|Invalid quantization method|quantization config\b|quantization schemes?\b|Unsupported FusedMoe scheme"
        r"|scheme must be defined for each layer|(?:group|channelwise) quantization|only \S+ weight quantization is",
        "a quantization that does not belong to this checkpoint was applied: {first}",
        where=None,
    ),
    rule(
        lambda place, match: "drafter-mismatch" if is_draft(place, match) else "weights-incomplete",
        r"SafetensorError|deserializing header|HeaderToo\w+|InvalidHeader\w*|MetadataIncompleteBuffer|incomplete metadata"
        r"|invalid load key|PytorchStreamReader|file not fully covered|unexpected end of file|not a valid (?:safetensors|zip)"
        r"|checksum mismatch|corrupt|truncated",
        "a weights file is incomplete or corrupt: {first}",
    ),
    rule(
        "weights-unreadable",
        r"Input/output error|Stale file handle|Transport endpoint is not connected|Remote I/O error|\[Errno (?:5|107|116|121)\]",
        "the storage under the weights failed: {first}",
    ),
    rule(
        refused,
        r"Permission denied:? ?'?(?P<path>[^'\n]*)",
        "permission denied: {path}",
    ),
    rule(
        "process-limits",
        r"Too many open files|can't start new thread|Resource temporarily unavailable|pthread_create failed",
        "a limit on processes or files was hit: {first}",
    ),
    rule(
        "host-memory",
        r"can't allocate memory|Cannot allocate memory|^MemoryError|std::bad_alloc|unable to mmap|Unable to allocate \S+ \w+ for an array",
        "host memory could not be allocated: {first}",
    ),
    rule(
        "tokenizer",
        r"instantiate the backend tokenizer|tiktoken|sentencepiece|tokenizer\.(?:json|model)\b|SentencePiece",
        "the tokenizer could not be made: {first}",
    ),
    rule(
        missing_path,
        r"No such file or directory:? ?'?(?P<path>[^'\n]*(?:safetensors|\.bin|\.json|/models?/)[^'\n]*)"
        r"|FileNotFoundError.{0,40}'(?P<path2>[^']+)'",
        "a file of the model is missing: {path}",
    ),
    rule(
        "quantization",
        r"^(?:\w+\.)*(?:ValueError|AssertionError|RuntimeError|TypeError|KeyError|NotImplementedError)\b",
        "the quantization does not fit these weights: {first}",
        where=r"layers/quantization/\S+:(?:__init__|from_config|get_\w+|create_weights|process_weights\w*|_verify\w*"
        r"|find_matched_target|should_ignore_layer)\s*\Z",
    ),
    rule(
        "flag",
        r"^(?:ValueError|AssertionError|NotImplementedError|RuntimeError)\b",
        "the arguments were refused: {first}",
        where=ARGUMENT_FRAMES.pattern,
    ),
    rule(
        "drafter-mismatch",
        r"set_embed(?:_and_head)?\b|hot_token_id|set_eagle3_layers|layers_to_capture|get_embed_and_head|draft_vocab_size"
        r"|(?:d2t|t2d)\b|eagle_config|fc\.weight|draft model.{0,60}(?:not|mismatch|match)|EAGLE3? .{0,60}(?:not support|mismatch)",
        "the drafter does not fit the target or this SGLang: {first}",
    ),
    rule(
        draft_or("weights-mismatch"),
        r"size mismatch|shapes? mismatch|mismatch(?:ed)? (?:in )?(?:shape|size)|Attempted to load weight|exceeds dimension size"
        r"|must match the (?:existing size|size of tensor)|shapes cannot be multiplied|loaded_weight|The size of tensor \S+ \(\d+\)"
        r"|(?:missing|unexpected) keys?|not found in (?:params_dict|checkpoint|the checkpoint)|were not (?:found|initialized)"
        r"|copying a param with shape|Error\(s\) in loading state_dict",
        "tensors do not fit{draft}: {first}",
    ),
    rule(
        inherited_or_mismatch,
        r"NoneType|has no attribute|^KeyError|^IndexError|^AssertionError|^AttributeError|^TypeError",
        "the drafter's weights or class do not fit: {first}",
        where=r"eagle|draft|nextn|_mtp",
    ),
    rule(
        "weights-mismatch",
        r"^KeyError: '?(?:model|language_model|lm_head|layers)\.|^KeyError: '\S*weight\S*'",
        "a tensor of the checkpoint has no place in this model class: {first}",
    ),
    rule(
        "library-mismatch",
        r"undefined symbol|cannot open shared object file|^ImportError|ModuleNotFoundError|cannot import name"
        r"|version `\w+_[\d.]+' not found|binary incompatibility|_ARRAY_API not found|is installed with version .{0,60}less than"
        r"|GLIBC\w*_[\d.]+|incompatible (?:version|library)|has no attribute 'sgl_kernel|'_OpNamespace'",
        "libraries of the image do not fit each other: {first}",
    ),
)
