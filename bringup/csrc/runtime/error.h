// Errors of the runtime: a status of the driver contract and a sentence for the user. No torch here.
#pragma once

#include <stdexcept>
#include <string>

#include "bringup/driver.h"

namespace bringup {

struct Error : std::runtime_error {
  Error(bringup_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  bringup_status status;
};

} // namespace bringup
