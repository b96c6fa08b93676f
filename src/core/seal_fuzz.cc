// Fuzzes the reader of sealed batches: any bytes are read or refused, and what is read has one form of bytes.
#include <cstddef>
#include <cstdint>

#include "core/seal.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const ae::JobId job("job-1");
  const ae::BlobSource blobs = [](const ae::Hash&) -> ae::Result<std::string> { return "null"; };
  const auto opened = ae::open(job, bytes, ae::Hash{}, blobs);
  const auto kept = ae::redact(job, bytes, ae::Hash{}, blobs,
                               [](const ae::Event&, std::string_view) { return false; });
  AE_CHECK(opened.has_value() == kept.has_value());
  AE_CHECK(!kept || *kept == bytes);
  return 0;
}
