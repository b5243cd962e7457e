-- Runs scripts in Lua 5.4, as Dragonfly does: for lua54_test.go, with which it speaks by its input and output.
-- Each value there is a line: its kind, then a number, or how many bytes or values follow.
--
-- A call is the script, its keys and its arguments. It is answered by commands, each of which is replied to, and
-- then by the script's reply. Each of these follows its name. A number that is a float is written as "f".

local input, output = io.stdin, io.stdout

local function read()
  local kind, size = input:read(1), input:read('n', 'L')
  if not kind then os.exit(0) end
  if kind == 'i' then return size end
  if kind == 'n' then return false end
  if kind == 'l' then
    local list = {}
    for i = 1, size do list[i] = read() end
    return list
  end
  local text = size == 0 and '' or input:read(size) -- read(0) would wait for the next byte
  if kind == 's' then return {ok = text} end
  if kind == 'e' then return {err = text} end
  return text
end

local function write(value)
  local kind = math.type(value) or type(value)
  if kind == 'integer' then
    output:write('i', value, '\n')
  elseif kind == 'float' then
    output:write('f', #tostring(value), '\n', tostring(value))
  elseif kind == 'string' then
    output:write('b', #value, '\n', value)
  elseif kind == 'table' and (value.ok or value.err) then
    output:write(value.ok and 's' or 'e', #(value.ok or value.err), '\n', value.ok or value.err)
  elseif kind == 'table' then
    output:write('l', #value, '\n')
    for i = 1, #value do write(value[i]) end
  else
    output:write('n0\n')
  end
end

local function try(...)
  write('command')
  write({...})
  output:flush()
  return read()
end

local function call(...)
  local reply = try(...)
  if type(reply) == 'table' and reply.err then error(reply) end
  return reply
end

while true do
  local source, keys, args = read(), read(), read()
  local globals = {
    KEYS = keys, ARGV = args, redis = {call = call, pcall = try}, unpack = table.unpack,
    math = math, string = string, table = table,
    error = error, ipairs = ipairs, next = next, pairs = pairs, pcall = pcall, select = select,
    tonumber = tonumber, tostring = tostring, type = type
  }
  setmetatable(globals, {
    __index = function(_, name) error('no global ' .. name) end,
    __newindex = function(_, name) error('a new global ' .. name) end
  })
  local script, fault = load(string.gsub(source, '^#![^\n]*', ''), '=script', 't', globals)
  local done, reply = false, fault
  if script then done, reply = pcall(script) end
  if not done and type(reply) ~= 'table' then reply = {err = 'ERR ' .. tostring(reply)} end
  write('reply')
  write(reply)
  output:flush()
end
