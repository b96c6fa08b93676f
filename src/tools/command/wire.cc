// Encoding of Order: a version, numbers as eight bytes, strings with a length prefix.
#include "tools/command/wire.h"

#include <cstring>

namespace ae::tools {
namespace {

constexpr std::uint64_t kWireVersion = 0x6165'7375'7065'0002;

class Writer {
 public:
  void number(std::uint64_t n) { out.append(reinterpret_cast<const char*>(&n), sizeof n); }
  void text(std::string_view t) {
    number(t.size());
    out += t;
  }
  void texts(const std::vector<std::string>& all) {
    number(all.size());
    for (const std::string& t : all) text(t);
  }
  std::string out;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  std::uint64_t number() {
    std::uint64_t n = 0;
    if (rest_.size() < sizeof n) {
      ok_ = false;
      return 0;
    }
    std::memcpy(&n, rest_.data(), sizeof n);
    rest_.remove_prefix(sizeof n);
    return n;
  }
  std::string text() {
    const std::uint64_t size = number();
    if (size > rest_.size()) {
      ok_ = false;
      return {};
    }
    std::string t(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return t;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> all;
    for (std::uint64_t left = number(); ok_ && left > 0; --left) all.push_back(text());
    return all;
  }
  Duration duration() { return Duration(static_cast<std::int64_t>(number())); }
  bool done() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace

std::string encode(const Order& order) {
  Writer w;
  w.number(kWireVersion);
  w.text(order.program);
  w.texts(order.argv);
  w.texts(order.environment);
  w.text(order.folder);
  for (const Duration d : {order.send_by, order.timeout, order.grace}) {
    w.number(static_cast<std::uint64_t>(d.count()));
  }
  const Sandbox& s = order.sandbox;
  for (const bool b : {s.none, s.files, s.network}) w.number(b ? 1 : 0);
  for (const auto* list : {&s.read, &s.write, &s.denied_paths}) w.texts(*list);
  for (const std::uint64_t n : {s.memory, s.processes, s.file_size, s.open_files, s.cpu_seconds}) {
    w.number(n);
  }
  return std::move(w.out);
}

bool decode(std::string_view bytes, Order& order) {
  Reader r(bytes);
  if (r.number() != kWireVersion) return false;
  order.program = r.text();
  order.argv = r.texts();
  order.environment = r.texts();
  order.folder = r.text();
  order.send_by = r.duration();
  order.timeout = r.duration();
  order.grace = r.duration();
  Sandbox& s = order.sandbox;
  for (bool* b : {&s.none, &s.files, &s.network}) *b = r.number() != 0;
  for (auto* list : {&s.read, &s.write, &s.denied_paths}) *list = r.texts();
  for (std::uint64_t* n : {&s.memory, &s.processes, &s.file_size, &s.open_files, &s.cpu_seconds}) {
    *n = r.number();
  }
  return r.done() && !order.program.empty() && !order.argv.empty();
}

}  // namespace ae::tools
