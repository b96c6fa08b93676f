#include "routines/native/routine_end.h"

#include <cxxabi.h>
#include <fmt/core.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>

#include "json/value.h"
#include "tools/output.h"

namespace ae::routines {
namespace {

constexpr std::size_t kMessageMax = 4096;  // bytes of the message of an exception

std::string name_of(const std::exception& e) {
  const char* const mangled = typeid(e).name();
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr), &std::free);
  return name ? name.get() : mangled;
}

// A word such as http_503.
bool is_code(std::string_view text) {
  return !text.empty() &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

}  // namespace

engine::RoutineEnd exception_end(std::string_view name, std::string_view message) {
  const auto text = [](std::string_view bytes) {
    return tools::printable(bytes.substr(0, kMessageMax), tools::LineBreaks::keep);
  };
  return {.exception = Value::object({{"message", text(message)}, {"name", text(name)}})};
}

engine::RoutineEnd exception_end(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    return exception_end(name_of(e), e.what());
  } catch (...) {
    return exception_end("no_exception", "the code threw an object that is not a std::exception");
  }
}

engine::Failure failure_of(const Error& error) {
  const std::string& message = error.message;
  const std::size_t colon = message.find(": ");
  if (error.code == Code::tool_failed && colon != message.npos &&
      is_code(std::string_view(message).substr(0, colon))) {
    return {message.substr(0, colon), message.substr(colon + 2)};
  }
  return {std::string(code_name(error.code)), error.message};
}

Error error_of(const engine::Failure& failure) {
  if (const auto code = code_from_name(failure.code)) return {*code, failure.message};
  return {Code::tool_failed, fmt::format("{}: {}", failure.code, failure.message)};
}

}  // namespace ae::routines
