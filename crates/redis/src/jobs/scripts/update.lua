-- Carries out a batch of operations on jobs of one partition that are there already. It runs also when Redis is out of memory.
-- ARGV, from the third on, for each job: operation, id, token, first number, second number.
-- Returns a digit for each job: 1 where it was done, 2 where the job then comes again by itself, 0 where it was not as the operation
-- wants it.
--
-- Starts and dones, which every job needs, are carried out together: a few commands for all of a batch.
if is_repeated then return last_reply end
if is_late then return refuse() end

local answers = {}
local wake = false

-- Workers look again when there is another first one.
local function wake_if_first(id)
  if call('ZRANGE', due, 0, 0)[1] == id then wake = true end
end

local function wait_again(from, id, attempts, at)
  wait(from, id, attempts, at)
  wake_if_first(id)
end

-- Starts or dones that are yet to be carried out, and which operations of the batch they are.
local which, ids, tokens, leases, places = nil, {}, {}, {}, {}

local function carry_out()
  if not which then return end
  local set = which == 'start' and claimed or running
  local states = call('HMGET', state, unpack(ids))
  local ends = call('ZMSCORE', set, unpack(ids))
  local grids = call('HMGET', repeats, unpack(ids))
  local held, scores, after = {}, {}, {}
  for n, id in ipairs(ids) do
    local owner, attempts, at = parse(states[n])
    local till = ends[n]
    if which == 'start' and owner == tokens[n] and till and tonumber(at) > now then
      -- The clock was set back after the job was claimed, so that it is not due any more.
      wait_again(claimed, id, attempts, at)
      answers[places[n]] = '0'
    elseif owner == tokens[n] and till and tonumber(till) > now then
      local last_point, every = grid_of(grids[n])
      answers[places[n]] = '1'
      if every and which == 'done' then
        come_again(running, id, at, last_point, every)
        wake_if_first(id)
        answers[places[n]] = '2'
      else
        held[#held + 1] = id
      end
      if which == 'start' then
        -- This delivery is for all points that have passed.
        if every and last_point > tonumber(at) then at = exact(last_point) end
        scores[#scores + 1] = exact(now + leases[n])
        scores[#scores + 1] = id
        after[#after + 1] = id
        after[#after + 1] = owner .. ' ' .. exact(attempts + 1) .. ' ' .. at
      end
    else
      answers[places[n]] = '0'
    end
  end
  if held[1] then
    if which == 'start' then
      call('ZADD', running, unpack(scores))
      call('HSET', state, unpack(after))
      call('ZREM', claimed, unpack(held))
    else
      call('ZREM', running, unpack(held))
      call('HDEL', state, unpack(held))
      call('HDEL', payload, unpack(held))
    end
  end
  which, ids, tokens, leases, places = nil, {}, {}, {}, {}
end

-- Every other operation, of which a batch has few.
local other

local function other_operations()
  local function forget(from, id)
    call('ZREM', from, id)
    call('HDEL', state, id)
    call('HDEL', payload, id)
    call('HDEL', repeats, id)
  end

  -- Returns whether the job comes again.
  local function bury_or_repeat(from, id, attempts, at)
    local again = bury(from, id, attempts, at)
    if again then wake_if_first(id) end
    return again
  end

  -- From where each takes a job, and what it does to it.
  local operations = {
    -- Of who holds the job, under a lease that lasts. The first takes back a start that was never seen.
    unstart = { is_holders = true, from = { running }, act = function(from, id, attempts, at)
      wait_again(from, id, exact(attempts - 1), at)
    end },
    release = { is_holders = true, from = { claimed }, act = wait_again },
    renew = { is_holders = true, from = { running, claimed }, act = function(from, id, _, _, lease)
      call('ZADD', from, exact(now + lease), id)
    end },
    bury = { is_holders = true, from = { running }, act = bury_or_repeat },
    -- Of a worker that could not fetch the payload.
    unfetched = { is_holders = true, from = { claimed }, act = function(from, id, attempts, at, _, most)
      fail(from, id, attempts, at, most,
        'its payload of ' .. call('HSTRLEN', payload, id) .. ' bytes could not be fetched in time')
    end },
    retry = { is_holders = true, from = { running }, act = function(from, id, attempts, at, delay, limit)
      if tonumber(attempts) >= limit then return bury_or_repeat(from, id, attempts, at) end
      wait_again(from, id, attempts, exact(now + delay))
    end },
    -- The start does not count.
    snooze = { is_holders = true, from = { running }, act = function(from, id, attempts, _, delay)
      wait_again(from, id, exact(attempts - 1), exact(now + delay))
    end },
    -- Of anybody.
    cancel = { from = { due, claimed }, act = forget },
    reschedule = { from = { due, claimed }, act = function(from, id, attempts, _, delay)
      wait_again(from, id, attempts, exact(now + delay))
    end },
    revive = { from = { dead }, act = function(from, id) wait_again(from, id, '0', exact(now)) end },
    purge = { from = { dead }, act = forget },
  }

  -- Of a worker that ends, which is named instead of a job.
  local function close(worker)
    leave(worker, 0)
    return '1'
  end

  return function(name, id, token, first, second)
    if name == 'close' then return close(id) end
    local operation = operations[name]
    local owner, attempts, at = read(id)
    if operation.is_holders and owner ~= token then return '0' end
    for _, from in ipairs(operation.from) do
      local score = call('ZSCORE', from, id)
      if score and (not operation.is_holders or tonumber(score) > now) then
        return operation.act(from, id, attempts, at, first, second) and '2' or '1'
      end
    end
    -- A job that runs and is to come again does not come again.
    if name == 'cancel' and call('ZSCORE', running, id) and call('HDEL', repeats, id) == 1 then return '1' end
    return '0'
  end
end

local place = 0
for at = 3, #ARGV, 5 do
  local operation, id, token = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  place = place + 1
  if operation == 'start' or operation == 'done' then
    if which ~= operation then carry_out() end
    which = operation
    local n = #ids + 1
    ids[n], tokens[n], leases[n], places[n] = id, token, ARGV[at + 3], place
  else
    -- In the order in which they were asked for.
    carry_out()
    other = other or other_operations()
    answers[place] = other(operation, id, token, tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]))
  end
end
carry_out()
local reply = table.concat(answers)
remember(reply)
if wake then hint() end
return reply
