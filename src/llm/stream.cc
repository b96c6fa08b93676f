// AnswerAssembler: two event formats, one way to join texts.
#include "llm/answer_assembler.h"

#include <utility>
#include <vector>

#include "json/json.h"
#include "llm/conversation.h"
#include "llm/wire_names.h"
#include "tools/tool.h"

namespace ae::llm {
namespace {

constexpr std::size_t kPartsOfAnswerMax = 1'024;  // calls or blocks

// Non-null members of `newer` win.
Value merged(const Value& older, const Value& newer) {
  Value out = older.is_object() ? older : Value::object({});
  if (!newer.is_object()) return out;
  for (const auto& [key, value] : newer.members()) {
    if (!value.is_null()) out = out.with(key, value);
  }
  return out;
}

std::optional<std::size_t> index_of(const Value& value) {
  if (!is_count(value) || value.as_int() >= static_cast<std::int64_t>(kPartsOfAnswerMax)) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(value.as_int());
}

}  // namespace

Status AnswerAssembler::feed(std::string_view bytes, std::string& text_out) {
  if (complete_) return {};
  if (failed_) return invalid_answer("the stream could not be read");
  failed_ = true;  // reset below on success
  const std::string_view taken = bytes.substr(0, tools::kStreamMax - bytes_);
  bytes_ += taken.size();
  std::vector<SseEvent> events;
  const Status fed = events_.feed(taken, events);
  for (const SseEvent& one : events) {
    AE_TRY(event(one, text_out));
    if (complete_) return {};  // data after the end is ignored
  }
  AE_TRY(fed);
  if (taken.size() < bytes.size()) {
    return fail(Code::payload_too_large, "the streamed answer is larger than 16 MiB");
  }
  failed_ = false;
  return {};
}

Status AnswerAssembler::event(const SseEvent& event, std::string& text_out) {
  if (wire_ == WireFormat::chat_completions && event.data == "[DONE]") {
    if (!started_) return invalid_answer("the streamed answer ends before it begins");
    complete_ = true;
    return {};
  }
  if (event.data.empty()) return {};
  auto value = parse_json(event.data, {.big_integers_as_strings = true});
  if (!value || !value->is_object()) {
    return invalid_answer("an event of the streamed answer is not a JSON object");
  }
  if ((*value)[wire::kError].is_object()) return fail_stream((*value)[wire::kError]);
  return wire_ == WireFormat::chat_completions ? chat_chunk(*value, text_out)
                                               : messages_event(*value, text_out);
}

Status AnswerAssembler::fail_stream(const Value& error) {
  error_type_ = error.text("type");
  return fail(Code::tool_failed, "the provider aborted its answer: {}",
              error.text("message", error_type_.empty() ? "no reason given" : error_type_));
}

// ---- Chat Completions: chunks with deltas of one message

Status AnswerAssembler::chat_chunk(const Value& chunk, std::string& text_out) {
  head_ = merged(head_, Value::object({{"id", chunk["id"]}, {"model", chunk["model"]}}));
  if (chunk[wire::kUsage].is_object()) usage_ = chunk[wire::kUsage];
  const Value& choices = chunk["choices"];
  if (!choices.is_array() || choices.size() == 0) return {};
  started_ = true;
  const Value& choice = choices.items()[0];
  if (choice["finish_reason"].is_string()) finish_fields_ = choice["finish_reason"];
  const Value& delta = choice["delta"];
  for (const std::string_view key : {"content", "refusal", "reasoning_content"}) {
    if (!delta[key].is_string()) continue;
    const std::string& text = delta[key].as_string();
    texts_[std::string(key)] += text;
    if (key == "content") text_out += text;
  }
  const Value& calls = delta["tool_calls"];
  if (!calls.is_array()) return {};
  for (std::size_t i = 0; i < calls.size(); ++i) AE_TRY(chat_call(calls.items()[i], i));
  return {};
}

// Some servers omit the index: a call with an id but no index is the next one.
Status AnswerAssembler::chat_call(const Value& delta, std::size_t position) {
  auto index = index_of(delta["index"]);
  if (!index && delta.find("index") == nullptr) {
    const bool fresh = items_.empty() || !delta.text("id").empty();
    index = items_.empty() ? position : items_.rbegin()->first + (fresh ? 1 : 0);
  }
  if (!index || *index >= kPartsOfAnswerMax)
    return invalid_answer("the streamed answer calls too many tools");
  PartialItem& call = items_[*index];
  const Value& function = delta["function"];
  call.initial =
      merged(call.initial, Value::object({{"id", delta["id"]}, {"name", function["name"]}}));
  const Value& arguments = function[wire::kArguments];
  if (arguments.is_string()) {
    call.texts[wire::kArguments] += arguments.as_string();
  } else if (!arguments.is_null()) {
    call.texts[wire::kArguments] += canonical(arguments);  // not streamed, as some servers send it
  }
  return {};
}

Value AnswerAssembler::chat_body() const {
  std::vector<Member> message = {{"role", "assistant"}};
  for (const auto& [key, text] : texts_) message.emplace_back(key, text);
  std::vector<Value> calls;
  calls.reserve(items_.size());
  for (const auto& [index, call] : items_) {
    const auto arguments = call.texts.find(wire::kArguments);
    calls.push_back(Value::object(
        {{"id", call.initial["id"]},
         {"type", "function"},
         {"function", Value::object({{"name", call.initial["name"]},
                                     {wire::kArguments,
                                      arguments == call.texts.end() ? "" : arguments->second}})}}));
  }
  if (!calls.empty()) message.emplace_back("tool_calls", Value::array(std::move(calls)));
  Value choice = Value::object({{"finish_reason", finish_fields_},
                                {"index", 0},
                                {"message", Value::object(std::move(message))}});
  return merged(head_, Value::object({{"choices", Value::array({std::move(choice)})},
                                      {wire::kUsage, usage_}}));
}

// ---- Messages: blocks that start, grow and end

Status AnswerAssembler::messages_event(const Value& event, std::string& text_out) {
  const std::string_view type = event.text("type");
  if (type == "message_start") {
    started_ = true;
    head_ = event["message"];
    usage_ = head_[wire::kUsage];
  } else if (type == "content_block_start") {
    const auto index = index_of(event["index"]);
    if (!index || !event["content_block"].is_object()) {
      return invalid_answer("a block of the streamed answer has no place");
    }
    // Blocks must start in order: the deltas are displayed in the order of the final answer.
    if (!items_.empty() && *index <= items_.rbegin()->first) {
      return invalid_answer("a block of the streamed answer begins before the one before it");
    }
    PartialItem& block = items_[*index];
    block.initial = event["content_block"];
    started_ = true;
    text_out += block.initial.text("text");
  } else if (type == "content_block_delta") {
    return block_delta(event, text_out);
  } else if (type == "message_delta") {
    finish_fields_ = merged(finish_fields_, event["delta"]);
    usage_ = merged(usage_, event[wire::kUsage]);
  } else if (type == "message_stop") {
    if (!started_) return invalid_answer("the streamed answer ends before it begins");
    complete_ = true;
  }
  return {};
}

Status AnswerAssembler::block_delta(const Value& event, std::string& text_out) {
  const auto index = index_of(event["index"]);
  const auto block = index ? items_.find(*index) : items_.end();
  if (block == items_.end())
    return invalid_answer("a block of the streamed answer grows before it began");
  if (block->first != items_.rbegin()->first) {
    return invalid_answer("a block of the streamed answer grows after the next one began");
  }
  constexpr std::string_view kTexts[] = {"text", "thinking", "signature", "partial_json"};
  const Value& delta = event["delta"];
  for (const std::string_view key : kTexts) {
    if (!delta[key].is_string()) continue;
    block->second.texts[std::string(key)] += delta[key].as_string();
    if (key == "text") text_out += delta[key].as_string();
  }
  return {};
}

Value AnswerAssembler::messages_body() const {
  std::vector<Value> content;
  content.reserve(items_.size());
  for (const auto& [index, block] : items_) {
    Value whole = block.initial;
    for (const auto& [key, text] : block.texts) {
      if (key != "partial_json") {
        whole = whole.with(key, std::string(whole.text(key)) + text);
      } else if (!text.empty()) {
        // Text that is not JSON stays a string and becomes a call with malformed arguments.
        auto input = parse_json(text, {.big_integers_as_strings = true});
        whole = whole.with(wire::kInput, input ? *std::move(input) : Value(text));
      }
    }
    content.push_back(std::move(whole));
  }
  Value body = merged(head_, finish_fields_);
  body = body.with("content", Value::array(std::move(content)));
  return usage_.is_null() ? body : body.with(wire::kUsage, usage_);
}

Value AnswerAssembler::body() const {
  AE_CHECK(complete_);
  return wire_ == WireFormat::chat_completions ? chat_body() : messages_body();
}

}  // namespace ae::llm
