// gzip: compresses bodies of responses.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ae::app {

// Smaller bodies are not compressed.
constexpr std::size_t kGzipMin = 1024;

// The bytes in gzip format; nullopt: not enough memory.
std::optional<std::string> gzip(std::string_view bytes);

// Does the header Accept-Encoding accept gzip? It must be named, or "*", with a weight above 0.
bool accepts_gzip(std::string_view accept_encoding);

}  // namespace ae::app
