#include "net/http_parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "net/http_target.h"

namespace ae::net {
namespace {

constexpr std::size_t kPartMax = 64u << 10;  // bytes

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Calls `each` with the pieces between separators; stops when it returns false.
template <class Each>
bool for_each_piece(std::string_view text, char separator, Each each) {
  for (;;) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (!each(text.substr(0, end))) return false;
    if (end == text.size()) return true;
    text.remove_prefix(end + 1);
  }
}

bool has_token(std::string_view list, std::string_view token) {
  bool found = false;
  for_each_piece(list, ',', [&](std::string_view piece) {
    found = found || equal_ignoring_case(trimmed(piece), token);
    return true;
  });
  return found;
}

bool is_host_header(std::string_view host) {
  return !host.empty() && std::ranges::all_of(host, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view(".-_:[]%").find(c) != std::string_view::npos;
  });
}

}  // namespace

std::size_t HttpParser::feed(std::string_view bytes) {
  std::size_t used = 0;
  while (state_ == State::reading && used < bytes.size()) {
    const bool in_data = section_ == Section::body || section_ == Section::chunk;
    used += in_data ? feed_body(bytes.substr(used)) : feed_line(bytes.substr(used));
  }
  return used;
}

bool HttpParser::take_expects_continue() {
  return std::exchange(expects_continue_, false) && body_size_ == 0;
}

HttpRequest HttpParser::take() {
  AE_CHECK(state_ == State::request);
  HttpRequest taken = std::move(request_);
  if (body_.size() == 1) {
    taken.body = std::move(body_.front());
  } else {
    taken.body.reserve(body_size_);
    for (std::string& part : body_) taken.body += std::exchange(part, {});
  }
  *this = HttpParser(limits_, stop_mode_);
  return taken;
}

HttpRequest HttpParser::take_head() {
  AE_CHECK(state_ == State::head);
  HttpRequest head = std::exchange(request_, {});
  request_.has_body = true;
  return head;
}

void HttpParser::refuse(int status, Code code, std::string detail) {
  state_ = State::refused;
  refusal_ = {status, code, std::move(detail)};
}

// ---- lines

std::size_t HttpParser::line_max() const {
  switch (section_) {
    case Section::request_line:
      return limits_.target_max;
    case Section::chunk_line:
      return limits_.chunk_line_max;
    case Section::chunk_end:
      return 0;
    default:
      return limits_.head_max - head_bytes_;
  }
}

// Consumes the rest of the current line. Forbidden bytes are refused at once, without waiting for
// the end of the line, which may never arrive.
std::size_t HttpParser::feed_line(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (after_cr_) {
      if (c != '\n') return refuse_bad_request("a carriage return without its line feed"), i;
      after_cr_ = false;
      end_line();
      return i + 1;
    }
    if (c == '\r') {
      after_cr_ = true;
    } else if (c == '\n') {
      return refuse_bad_request("a line feed without its carriage return"), i;
    } else if (is_control(c) && c != '\t') {
      return refuse_bad_request("a control character in the head of the request"), i;
    } else if (line_.size() == line_max()) {
      switch (section_) {
        case Section::request_line:
          refuse(414, Code::payload_too_large, "the request line is too long");
          break;
        case Section::chunk_line:
        case Section::chunk_end:
          refuse_bad_request("invalid chunk framing");
          break;
        default:
          refuse(431, Code::payload_too_large, "the headers are too large");
      }
      return i;
    } else {
      line_ += c;
    }
  }
  return bytes.size();
}

void HttpParser::end_line() {
  const bool in_head = section_ <= Section::headers || section_ == Section::trailers;
  if (in_head) head_bytes_ = std::min(head_bytes_ + line_.size() + 2, limits_.head_max);
  switch (section_) {
    case Section::request_line:
      read_request_line();
      break;
    case Section::headers:
      line_.empty() ? end_headers() : read_header();
      break;
    case Section::chunk_line:
      read_chunk_line();
      break;
    case Section::chunk_end:
      section_ = Section::chunk_line;
      break;
    case Section::trailers:
      if (line_.empty()) {
        state_ = State::request;
      } else {
        read_trailer();
      }
      break;
    case Section::body:
    case Section::chunk:
      break;
  }
  line_.clear();
}

void HttpParser::read_request_line() {
  const std::string_view line = line_;
  // Some clients send an extra empty line after a body (RFC 9112 §2.2).
  if (line.empty() && !std::exchange(after_empty_line_, true)) return;
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return refuse_bad_request("the request line is not METHOD TARGET HTTP/1.1");
  }
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_header_name(method)) return refuse_bad_request("invalid method token");
  if (version.starts_with("HTTP/") && version != "HTTP/1.1" && version != "HTTP/1.0") {
    return refuse(505, Code::unsupported, "this server speaks HTTP/1.1");
  }
  if (!version.starts_with("HTTP/"))
    return refuse_bad_request("the request line does not end with HTTP/1.1");
  minor_ = version.back() - '0';
  constexpr std::array<std::string_view, 7> kMethods = {"GET",   "HEAD",   "POST",   "PUT",
                                                        "PATCH", "DELETE", "OPTIONS"};
  if (method == "CONNECT" || method == "TRACE") {
    return refuse(405, Code::method_not_allowed, "method not allowed");
  }
  if (std::ranges::find(kMethods, method) == kMethods.end()) {
    return refuse(501, Code::unsupported, "unknown method");
  }
  request_.method = method;
  read_target(target);
  section_ = Section::headers;
}

// `http://host/path`, the form sent to proxies: its host replaces the Host header (RFC 9112
// §3.2.2). Returns the path and query.
std::string_view HttpParser::read_absolute_form(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.size() < scheme.size()) continue;
    if (!equal_ignoring_case(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    const std::size_t end = std::min(target.find_first_of("/?"), target.size());
    target_host_ = target.substr(0, end);
    if (!is_host_header(target_host_)) return {};
    target.remove_prefix(end);
    return target.empty() ? "/" : target;
  }
  return target;
}

void HttpParser::read_target(std::string_view given) {
  std::string_view target = read_absolute_form(given);
  std::string with_slash;
  if (!target_host_.empty() && target.starts_with('?')) {
    with_slash = fmt::format("/{}", target);
    target = with_slash;
  }
  auto found = parse_target(target);
  if (!found) return refuse_bad_request(std::move(found).error().message);
  request_.path = std::move(found->path);
  request_.query = std::move(found->query);
}

void HttpParser::read_header() {
  if (line_[0] == ' ' || line_[0] == '\t') return refuse_bad_request("a folded header");
  const std::size_t colon = line_.find(':');
  const std::string_view name = std::string_view(line_).substr(0, colon);
  if (colon == std::string::npos || !is_header_name(name))
    return refuse_bad_request("a header without a name");
  if (request_.headers.size() == limits_.headers_max) {
    return refuse(431, Code::payload_too_large, "too many headers");
  }
  HttpHeader header{std::string(name),
                    std::string(trimmed(std::string_view(line_).substr(colon + 1)))};
  for (char& c : header.name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  request_.headers.push_back(std::move(header));
}

// Trailers are validated and discarded.
void HttpParser::read_trailer() {
  const std::size_t colon = line_.find(':');
  const std::string_view name = std::string_view(line_).substr(0, colon);
  if (colon == std::string::npos || !is_header_name(name))
    return refuse_bad_request("a trailer without a name");
  for (const std::string_view forbidden :
       {"content-length", "transfer-encoding", "host", "content-type", "content-encoding",
        "authorization", "connection"}) {
    if (equal_ignoring_case(name, forbidden))
      return refuse_bad_request("a trailer that must be a header");
  }
  if (++trailers_ > limits_.headers_max) {
    refuse(431, Code::payload_too_large, "too many trailers");
  }
}

// ---- header semantics

void HttpParser::end_headers() {
  std::size_t hosts = 0, encodings = 0;
  bool close = minor_ == 0;
  bool chunked = false;
  for (const auto& [name, value] : request_.headers) {
    if (name == "host") {
      if (++hosts > 1 || !is_host_header(value))
        return refuse_bad_request("the Host header does not name exactly one host");
    } else if (name == "transfer-encoding") {
      if (++encodings > 1 || minor_ == 0 || !equal_ignoring_case(value, "chunked")) {
        return refuse_bad_request("the transfer encoding is not one chunked");
      }
      chunked = true;
    } else if (name == "connection") {
      close = close || has_token(value, "close");
    } else if (name == "upgrade" &&
               !(request_.method == "GET" && equal_ignoring_case(value, "websocket"))) {
      return refuse(501, Code::unsupported, "this server supports no upgrade but websocket");
    } else if (name == "expect") {
      if (!equal_ignoring_case(value, "100-continue")) {
        return refuse(417, Code::unsupported, "unknown expectation");
      }
      expects_continue_ = minor_ == 1;
    } else if (name == "content-encoding" && !equal_ignoring_case(value, "identity")) {
      return refuse(415, Code::unsupported_media_type, "send the body without a content encoding");
    }
  }
  if (hosts == 0 && minor_ == 1) return refuse_bad_request("the Host header is missing");
  if (!target_host_.empty()) {
    std::erase_if(request_.headers, [](const HttpHeader& header) { return header.name == "host"; });
    request_.headers.push_back({"host", target_host_});
  }
  keep_alive_ = !close;
  if (!read_length(chunked)) return;
  request_.has_body = chunked || body_left_ > 0;
  if (!request_.has_body) {
    expects_continue_ = false;
    state_ = State::request;
    return;
  }
  section_ = chunked ? Section::chunk_line : Section::body;
  if (stop_mode_ == StopMode::before_body_too) state_ = State::head;
}

bool HttpParser::read_length(bool chunked) {
  const std::string* length = nullptr;
  for (const auto& [name, value] : request_.headers) {
    if (name != "content-length") continue;
    if (length != nullptr || chunked) {
      refuse_bad_request("the body has two lengths");
      return false;
    }
    length = &value;
  }
  if (length == nullptr) return true;
  std::uint64_t size = 0;
  const char* end = length->data() + length->size();
  const auto [stop, error] = std::from_chars(length->data(), end, size);
  if (error != std::errc() || stop != end) {
    refuse_bad_request("the Content-Length is not a number");
    return false;
  }
  if (size > limits_.body_max) {
    refuse(413, Code::payload_too_large,
           fmt::format("the body is larger than {} bytes", limits_.body_max));
    return false;
  }
  body_left_ = static_cast<std::size_t>(size);
  return true;
}

// ---- body

std::size_t HttpParser::feed_body(std::string_view bytes) {
  const std::size_t size = std::min(bytes.size(), body_left_);
  for (std::size_t at = 0; at < size;) {
    if (body_.empty() || body_.back().size() == kPartMax) {
      body_.emplace_back().reserve(std::min(kPartMax, body_left_ - at));
    }
    const std::size_t more = std::min(size - at, kPartMax - body_.back().size());
    body_.back() += bytes.substr(at, more);
    at += more;
  }
  body_size_ += size;
  body_left_ -= size;
  if (body_left_ == 0) {
    if (section_ == Section::body) {
      state_ = State::request;
    } else {
      section_ = Section::chunk_end;
    }
  }
  return size;
}

void HttpParser::read_chunk_line() {
  const std::size_t digits = std::min(line_.find(';'), line_.size());
  std::uint64_t size = 0;
  const auto [stop, error] = std::from_chars(line_.data(), line_.data() + digits, size, 16);
  if (error != std::errc() || stop != line_.data() + digits) {
    return refuse_bad_request("the size of a chunk is not a number");
  }
  if (size == 0) {
    section_ = Section::trailers;
    head_bytes_ = 0;
    return;
  }
  if (++chunks_ > limits_.chunks_max)
    return refuse_bad_request("the body comes in too many chunks");
  if (size > limits_.body_max - body_size_) {
    return refuse(413, Code::payload_too_large,
                  fmt::format("the body is larger than {} bytes", limits_.body_max));
  }
  body_left_ = static_cast<std::size_t>(size);
  section_ = Section::chunk;
}

}  // namespace ae::net
